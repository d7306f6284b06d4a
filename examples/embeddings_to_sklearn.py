"""Released embeddings into scikit-learn: once they are out, any estimator may read them.

The folder of released rows is a product of its own, with its card. Whoever gets it needs no graph
and spends no budget.
"""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gapgnn import PrivateHops, load_dataset, random_split

graph = random_split(load_dataset("social"), seed=0)

# The curator: one charge, and a folder to hand out.
PrivateHops(level="edge", epsilon=2.0, hops=2).fit(graph).save("embeddings", format="parquet")

# Somebody else: reads the folder. At edge level labels are public.
released = PrivateHops.load("embeddings")
table = np.concatenate([hop.numpy() for hop in released.transform()], axis=1)
print(table.shape, released.get_feature_names_out()[-1])
print(released.card_)

train, test = graph.train_mask, graph.test_mask
for estimator in (
    make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=200)),
    HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=8),
):
    estimator.fit(table[train], graph.labels[train])
    print(type(estimator).__name__, round(estimator.score(table[test], graph.labels[test]), 3))
