from .folds import CrossValidation as CrossValidation
from .folds import Fold as Fold
from .folds import cross_validate as cross_validate
from .metrics import bootstrap_interval as bootstrap_interval
from .metrics import paired_test as paired_test
