"""What the private data is: a graph with features, labels and a split; what can be done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.graph.canonical import Features as Features
    from gapgnn.graph.canonical import NotFinite as NotFinite
    from gapgnn.graph.canonical import as_dangling as as_dangling
    from gapgnn.graph.canonical import as_features as as_features
    from gapgnn.graph.canonical import as_inferred as as_inferred
    from gapgnn.graph.canonical import as_names as as_names
    from gapgnn.graph.canonical import frozen as frozen
    from gapgnn.graph.canonical import schema_of_note as schema_of_note
    from gapgnn.graph.convert import as_graph as as_graph
    from gapgnn.graph.convert import from_networkx as from_networkx
    from gapgnn.graph.convert import from_pyg as from_pyg
    from gapgnn.graph.convert import from_scipy as from_scipy
    from gapgnn.graph.convert import to_networkx as to_networkx
    from gapgnn.graph.convert import to_pyg as to_pyg
    from gapgnn.graph.convert import to_scipy as to_scipy
    from gapgnn.graph.degree import CutRule as CutRule
    from gapgnn.graph.degree import bound_out_degrees as bound_out_degrees
    from gapgnn.graph.degree import in_chunks as in_chunks
    from gapgnn.graph.degree import pair_hashes as pair_hashes
    from gapgnn.graph.degree import row_words as row_words
    from gapgnn.graph.degree import secret_words as secret_words
    from gapgnn.graph.degree import split_key as split_key
    from gapgnn.graph.degree import stays as stays
    from gapgnn.graph.files import DAMAGE as DAMAGE
    from gapgnn.graph.files import Progress as Progress
    from gapgnn.graph.files import file_digest as file_digest
    from gapgnn.graph.fingerprint import digest_of as digest_of
    from gapgnn.graph.fingerprint import order_of_ids as order_of_ids
    from gapgnn.graph.graph import MASKS as MASKS
    from gapgnn.graph.graph import Graph as Graph
    from gapgnn.graph.people import WHOLE_NUMBER as WHOLE_NUMBER
    from gapgnn.graph.people import WordKind as WordKind
    from gapgnn.graph.people import Words as Words
    from gapgnn.graph.people import encode_ids as encode_ids
    from gapgnn.graph.people import folds_of as folds_of
    from gapgnn.graph.people import has_only_positions as has_only_positions
    from gapgnn.graph.people import letters_of as letters_of
    from gapgnn.graph.people import repeat_roles as repeat_roles
    from gapgnn.graph.people import roles as roles
    from gapgnn.graph.people import siphash_128 as siphash_128
    from gapgnn.graph.people import whole_numbers as whole_numbers
    from gapgnn.graph.transforms import align_features as align_features
    from gapgnn.graph.transforms import arcs_only as arcs_only
    from gapgnn.graph.transforms import check_declared as check_declared
    from gapgnn.graph.transforms import check_trainable as check_trainable
    from gapgnn.graph.transforms import filter_classes as filter_classes
    from gapgnn.graph.transforms import induced as induced
    from gapgnn.graph.transforms import join_kinds as join_kinds
    from gapgnn.graph.transforms import one_class_against_all as one_class_against_all
    from gapgnn.graph.transforms import random_split as random_split
    from gapgnn.graph.transforms import with_absent as with_absent
    from gapgnn.graph.weights import STEPS as STEPS
    from gapgnn.graph.weights import WEIGHT_GRID as WEIGHT_GRID
    from gapgnn.graph.weights import WeightBounds as WeightBounds
    from gapgnn.graph.weights import steps_of as steps_of
    from gapgnn.graph.wording import Wording as Wording

__getattr__, __dir__, __all__ = front(__name__)
