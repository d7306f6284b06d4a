"""Methods that send class codes along the edges: LabelGAP at edge level, NodeLabelGAP."""
