"""A message of one's own in LabelGAP: what nodes send, with a norm bound that is checked.

The function is given public features and labels and released rows, and nothing else. It declares
how long its rows are at most. The bound is checked on a trial before anything is charged, and on
every row before each release.
"""

import torch
from torch import Tensor

from gapgnn import LabelGAP, load_dataset
from gapgnn.errors import PrivacyError

graph = load_dataset("social")


def confident_votes(senders) -> Tensor:
    """Send one vote, as far as a node is sure of its class; training nodes are."""
    sure, voted = senders.posteriors.max(dim=1)
    known = senders.labels >= 0
    voted = torch.where(known, senders.labels, voted)
    sure = torch.where(known, 1.0, (sure - 1 / senders.num_classes).clamp(min=0))
    return torch.eye(senders.num_classes)[voted] * sure.unsqueeze(1)


confident_votes.norm_bound = 1.0
confident_votes.columns = 6

model = LabelGAP(epsilon=1.0, hops=2, epochs=60, messages=confident_votes)
print(model.plan_for(graph))  # as expensive as the library's own messages
model.fit(graph)
print(f"test accuracy: {model.score(graph):.3f}")
print("what travelled:", model.card_.messages)


def too_long(senders) -> Tensor:
    """Break the declared bound."""
    return 1.5 * confident_votes(senders)


too_long.norm_bound, too_long.columns = 1.0, 6
try:
    LabelGAP(messages=too_long).fit(graph)
except PrivacyError as refusal:
    print("refused, and nothing was charged:", refusal)
