from .inductive import inductive_link_attack as inductive_link_attack
from .label_inference import label_inference_attack as label_inference_attack
from .membership import lira_attack as lira_attack
from .membership import membership_attack as membership_attack
from .own_neighbours import own_neighbours_attack as own_neighbours_attack
from .reconstruction import reconstruction_attack as reconstruction_attack
from .target import fitted as fitted
