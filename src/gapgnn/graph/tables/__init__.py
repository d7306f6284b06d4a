"""A graph from people's own tables: columns, ids, edges, and what is declared about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.graph.tables.amounts import EdgeCounts as EdgeCounts
    from gapgnn.graph.tables.amounts import EdgeFiles as EdgeFiles
    from gapgnn.graph.tables.amounts import Moment as Moment
    from gapgnn.graph.tables.edges import Dangling as Dangling
    from gapgnn.graph.tables.edges import EdgeTable as EdgeTable
    from gapgnn.graph.tables.edges import edge_batches as edge_batches
    from gapgnn.graph.tables.edges import end_columns as end_columns
    from gapgnn.graph.tables.features import has_stated_width as has_stated_width
    from gapgnn.graph.tables.features import read_features as read_features
    from gapgnn.graph.tables.files import Dialect as Dialect
    from gapgnn.graph.tables.files import TableFile as TableFile
    from gapgnn.graph.tables.files import open_table as open_table
    from gapgnn.graph.tables.nodes import ScannedNodes as ScannedNodes
    from gapgnn.graph.tables.preparation import Preparation as Preparation
    from gapgnn.graph.tables.proposal import propose_schema as propose_schema
    from gapgnn.graph.tables.read import OnDangling as OnDangling
    from gapgnn.graph.tables.read import ScannedTables as ScannedTables
    from gapgnn.graph.tables.read import TableOptions as TableOptions
    from gapgnn.graph.tables.read import read_ids as read_ids
    from gapgnn.graph.tables.read import read_tables as read_tables
    from gapgnn.graph.tables.read import scan_tables as scan_tables
    from gapgnn.graph.tables.schema import OTHER as OTHER
    from gapgnn.graph.tables.schema import Category as Category
    from gapgnn.graph.tables.schema import Column as Column
    from gapgnn.graph.tables.schema import Date as Date
    from gapgnn.graph.tables.schema import Number as Number
    from gapgnn.graph.tables.schema import Schema as Schema
    from gapgnn.graph.tables.schema import Weight as Weight
    from gapgnn.graph.tables.survey import ColumnFate as ColumnFate
    from gapgnn.graph.tables.survey import column_summary as column_summary
    from gapgnn.graph.tables.survey import survey_columns as survey_columns

__getattr__, __dir__, __all__ = front(__name__)
