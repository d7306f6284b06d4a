from .budget import SHARES as SHARES
