"""A graph from people's own tables: columns, ids, edges, and what is declared about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.graph.tables.columns import DeclaredColumn as DeclaredColumn
    from gapgnn.graph.tables.columns import NumberColumn as NumberColumn
    from gapgnn.graph.tables.columns import category_text as category_text
    from gapgnn.graph.tables.columns import check_categories as check_categories
    from gapgnn.graph.tables.columns import declared_columns as declared_columns
    from gapgnn.graph.tables.columns import one_hot as one_hot
    from gapgnn.graph.tables.columns import side_by_side as side_by_side
    from gapgnn.graph.tables.edges import Dangling as Dangling
    from gapgnn.graph.tables.edges import NodeIndex as NodeIndex
    from gapgnn.graph.tables.edges import edge_batches as edge_batches
    from gapgnn.graph.tables.edges import end_columns as end_columns
    from gapgnn.graph.tables.features import has_stated_width as has_stated_width
    from gapgnn.graph.tables.features import read_features as read_features
    from gapgnn.graph.tables.files import TableFile as TableFile
    from gapgnn.graph.tables.files import open_table as open_table
    from gapgnn.graph.tables.nodes import NodeColumns as NodeColumns
    from gapgnn.graph.tables.nodes import learned_columns as learned_columns
    from gapgnn.graph.tables.nodes import pass_over_nodes as pass_over_nodes
    from gapgnn.graph.tables.nodes import read_with_types as read_with_types
    from gapgnn.graph.tables.proposal import propose_schema as propose_schema
    from gapgnn.graph.tables.read import read_tables as read_tables
    from gapgnn.graph.tables.schema import OTHER as OTHER
    from gapgnn.graph.tables.schema import Category as Category
    from gapgnn.graph.tables.schema import Column as Column
    from gapgnn.graph.tables.schema import Number as Number
    from gapgnn.graph.tables.schema import Schema as Schema

__getattr__, __dir__, __all__ = front(__name__)
