"""The rooms of the report: what a run says (record, stages, story), and how it is drawn (svg, panels, tables, page)."""
