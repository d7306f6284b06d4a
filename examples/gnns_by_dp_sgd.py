"""A GCN and a GAT by DP-SGD at node level: ordinary PyG modules in, private weights out.

Each training node with a few neighbours is one example. `dp_sgd` clips the gradient of every
example, adds noise, charges the ledger, and returns the module with a card. The card covers the
weights. Predictions with neighbours read their exact rows, and those without any do not.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv

from gapgnn import PrivacyError, dp_sgd, load_dataset, random_split
from gapgnn.graph import to_pyg


class Network(nn.Module):
    """An encoder of rows and one convolution. Nothing in it normalises over several nodes."""

    def __init__(self, convolution: type[nn.Module], columns: int, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(columns, 16), nn.GroupNorm(4, 16), nn.SELU())
        self.convolution = convolution(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the class scores of every node."""
        return self.convolution(self.encoder(x), edge_index)


data = to_pyg(random_split(load_dataset("social"), seed=0))
x, nobody = data.x.to_dense(), data.edge_index[:, :0]
options = {"level": "node", "epsilon": 8.0, "max_degree": 2, "epochs": 2}


def accuracy(module: nn.Module, edge_index: Tensor) -> float:
    """Return the share of right answers on test nodes: for the curator, not for publication."""
    with torch.no_grad():
        right = module(x, edge_index).argmax(dim=1) == data.y
    return float(right[data.test_mask].float().mean())


torch.manual_seed(0)
for convolution in (GCNConv, GATConv):
    module = Network(convolution, data.num_features, 6)
    # The price first: nothing is charged or trained.
    plan = dp_sgd(module, data, plan_only=True, **options)
    print(f"{convolution.__name__}: {plan.settings.steps} steps, {plan.promise}")
    trained, card = dp_sgd(module, data, **options)  # charged here
    print(card)
    print(f"with all neighbours:   {accuracy(trained, data.edge_index):.3f}")
    print(f"without any neighbour: {accuracy(trained, nobody):.3f}")

# What would let one person change another one's gradient is refused before it is charged.
module.encoder[1] = nn.BatchNorm1d(16)
try:
    dp_sgd(module, data, **options)
except PrivacyError as refusal:
    print("refused:", refusal)
