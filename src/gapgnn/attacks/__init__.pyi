from .membership import lira_attack as lira_attack
from .membership import membership_attack as membership_attack
from .own_list import own_list_attack as own_list_attack
from .target import fitted as fitted
