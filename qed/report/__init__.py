"""HTML report and model card: read a run (record, stages, story) and draw it (svg, panels, tables, page)."""
