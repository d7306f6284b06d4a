"""A comparison plot over epsilon: our methods and a network of one's own, with error bars.

Every point is charged: three budgets, three private methods. On data of your own, make such curves
as a curator with `gapgnn experiment`, which charges nothing and keeps its figures to you.
"""

import matplotlib
import torch
import torch.nn.functional as F

from gapgnn import GAP, MLP, LabelGAP, PrivateHops, load_dataset, random_split

matplotlib.use("agg")
from matplotlib import pyplot

BUDGETS, REPEATS = (0.25, 1.0, 4.0), 2
graph = random_split(load_dataset("social"), seed=0)
y = torch.tensor(graph.labels)
train, test = torch.tensor(graph.train_mask), torch.tensor(graph.test_mask)


def own(epsilon: float) -> list[float]:
    """Return test accuracies of a linear network on private hops of labels."""
    scores = []
    for _ in range(REPEATS):
        rows = F.one_hot(y, 6).float() * train.unsqueeze(1)
        hops = PrivateHops(epsilon=epsilon, hops=1).fit_transform(graph, rows)
        model = torch.nn.Linear(6, 6)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(60):
            loss = F.cross_entropy(model(hops[1][train]), y[train])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        scores.append(float((model(hops[1]).argmax(dim=1) == y)[test].float().mean()))
    return scores


def of_method(method: type, **options: object) -> list[float]:
    """Return test accuracies of one of our methods."""
    return method(repeats=REPEATS, **options).fit(graph).repeat_scores_


curves = {
    "own network on hops": own,
    "GAP": lambda epsilon: of_method(GAP, epsilon=epsilon, epochs=20),
    "LabelGAP": lambda epsilon: of_method(LabelGAP, epsilon=epsilon, hops=2, epochs=20),
}
figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
for name, measured in curves.items():
    points = torch.tensor([measured(epsilon) for epsilon in BUDGETS])
    means, spread = points.mean(dim=1), points.std(dim=1)
    axes.errorbar(BUDGETS, means, yerr=spread, marker="o", capsize=3, label=name)
    print(name, [round(float(mean), 3) for mean in means])

# What reads no edge costs nothing, at any budget.
alone = sum(of_method(MLP, epochs=20)) / REPEATS
axes.axhline(alone, color="0.5", linestyle="--", label="features only")
axes.set(xscale="log", xlabel="epsilon (one undirected edge)", ylabel="test accuracy")
axes.legend()
figure.savefig("epsilon.png", dpi=150)
print(f"features only: {alone:.3f}; written to epsilon.png")
