"""Attacks on trained models, and audits that try to break the shipped mechanisms."""
