"""Hyperparameters for free: after the release, any number of networks may be tried.

At edge level the released hops are charged once. Training on them, and choosing by labels of
validation nodes, which are public, reads no edge again. (At node level labels are private: there
every candidate is a release of its own.)
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn import Ledger, PrivateHops, load_dataset, random_split

graph = random_split(load_dataset("social"), seed=0)
y = torch.tensor(graph.labels)
train, val, test = (
    torch.tensor(mask) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
)

# One charge: labels of training nodes travel two hops.
rows = F.one_hot(y, 6).float() * train.unsqueeze(1)
hops = PrivateHops(level="edge", epsilon=1.0, hops=2).fit_transform(graph, rows)
released = torch.cat(hops[1:], dim=1)


def trained(width: int, rate: float, decay: float) -> nn.Module:
    """Return a network of one candidate, trained on the released rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(released.shape[1], width), nn.ReLU(), nn.Linear(width, 6))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(40):
        loss = F.cross_entropy(model(released[train]), y[train])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def accuracy(model: nn.Module, mask: Tensor) -> float:
    """Return the share of right answers on some nodes."""
    with torch.no_grad():
        return float((model(released[mask]).argmax(dim=1) == y[mask]).float().mean())


found = {}
for candidate in itertools.product((8, 32), (0.01, 0.05), (0.0, 1e-3)):
    model = trained(*candidate)
    found[candidate] = accuracy(model, val), model
    print("width, rate, decay:", candidate, f"validation {found[candidate][0]:.3f}")

best = max(found, key=lambda candidate: found[candidate][0])
charges = len(Ledger().entries())
print(f"best of {len(found)}: {best}, test accuracy {accuracy(found[best][1], test):.3f}")
print(f"charges in the ledger: {charges}")
