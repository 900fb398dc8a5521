"""CSS of the page: one column of text, charts in a grid, colours as variables for light, dark and print."""

LIGHT = """
  --paper: #ffffff; --ink: #1a1f26; --soft: #566170; --rule: #dde2e8; --wash: #f5f7f9; --grid: #e6eaee; --faint: 0.26;
  --right: #00735a; --wrong: #b8440c; --right-wash: #e9f5f1; --wrong-wash: #fbefe8;
  --c0: #0a62a3; --c1: #c4500b; --c2: #007a5a; --c3: #9a4a86;
  --c4: #8a6400; --c5: #4d5866; --c6: #3c8fc4; --c7: #a03030;
"""
DARK = """
  --paper: #14181d; --ink: #e6eaef; --soft: #9ba6b3; --rule: #323a44; --wash: #1c2229; --grid: #29313a; --faint: 0.42;
  --right: #45cda2; --wrong: #ff9c63; --right-wash: #15291f; --wrong-wash: #2e2018;
  --c0: #62b3f2; --c1: #ff9a56; --c2: #43cfa1; --c3: #e59ccd;
  --c4: #e6bf52; --c5: #b3bdc8; --c6: #8fd0ff; --c7: #ff8f8f;
"""
COLOUR_CLASSES = "\n".join(f".c{number} {{ --c: var(--c{number}); }}" for number in range(8))
STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
@media print {{ :root {{ color-scheme: light; {LIGHT} }} }}
{COLOUR_CLASSES}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }}
body {{
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans",
    Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}}
main {{ max-width: 1128px; margin: 0 auto; padding: 32px 24px 64px; }}
h1 {{ font-size: 28px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }}
h2 {{ font-size: 20px; line-height: 1.3; margin: 0 0 12px; padding-top: 16px; border-top: 1px solid var(--rule); }}
h3 {{ font-size: 15px; line-height: 1.3; margin: 0 0 6px; }}
p {{ margin: 0 0 10px; max-width: 78ch; overflow-wrap: anywhere; }}
section {{ margin-top: 36px; }}
small {{ font-size: 12.5px; color: var(--soft); font-weight: 400; }}
.facts, .note, .size {{ color: var(--soft); font-size: 13.5px; }}
.headline {{ font-size: 20px; line-height: 1.4; margin: 20px 0 0; max-width: 66ch; text-wrap: pretty; }}
.trouble {{
  margin: 16px 0 0; padding: 10px 14px; border-left: 4px solid var(--wrong); background: var(--wrong-wash);
  white-space: pre-line;
}}
.tiles {{
  display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); column-gap: 12px; row-gap: 0;
  margin: 22px 0 -12px;
}}
.tiles div {{
  background: var(--wash); border-radius: 6px; padding: 12px 14px; margin-bottom: 12px; display: grid; grid-row: span 2;
  grid-template-rows: subgrid; row-gap: 0;
}}
.tiles dt {{ font-size: 13px; color: var(--soft); line-height: 1.3; }}
.tiles dd {{ margin: 2px 0 0; }}
.tiles b {{ display: block; font-size: 23px; font-weight: 650; line-height: 1.3; letter-spacing: -0.01em; }}
.tiles small {{ display: block; }}
table {{ border-collapse: collapse; font-size: 14.5px; line-height: 1.35; margin: 0 0 16px; }}
caption {{ text-align: left; color: var(--soft); font-size: 13.5px; padding: 0 0 6px; }}
th, td {{
  padding: 7px 14px 7px 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: nowrap;
}}
th:last-child, td:last-child {{ padding-right: 0; }}
thead th {{ color: var(--soft); font-weight: 400; font-size: 13px; vertical-align: bottom; }}
tbody th, thead th:first-child {{ text-align: left; font-weight: 550; }}
td small, th small {{ display: block; }}
.outcomes {{ width: 100%; }}
tbody th, .figures thead th, .moves thead th {{ white-space: normal; overflow-wrap: anywhere; }}
tbody th {{ min-width: 130px; }}
caption, figure h3, li {{ overflow-wrap: anywhere; }}
.moves th, .moves td {{ white-space: normal; }}
.made {{
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 40px;
}}
.made > div {{ overflow-x: auto; }}
.made h3 {{ break-after: avoid; margin: 4px 0; }}
.made table {{ font-size: 13.5px; }}
.made th, .made td {{ padding-top: 4px; padding-bottom: 4px; }}
.words th, .words td {{ text-align: left; white-space: normal; overflow-wrap: anywhere; }}
.words th {{ font-weight: 400; color: var(--soft); overflow-wrap: break-word; }}
.words td small {{ display: inline; margin-left: 10px; }}
.charts {{
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 316px), 1fr)); gap: 0 22px;
  grid-auto-flow: row dense;
}}
/* Heading, legend, drawing and note share their rows with the neighbours, so that the drawings of a row stand level. */
.chart {{
  margin: 0 0 26px; min-width: 0; break-inside: avoid; display: grid; grid-row: span 4; grid-template-rows: subgrid;
  grid-template-columns: minmax(0, 1fr); row-gap: 0;
}}
.chart h3 {{ margin: 0; }}
.chart .size {{ white-space: nowrap; font-weight: 400; margin-left: 8px; }}
.note {{ max-width: 96ch; }}
.chart .note {{ font-size: 12.5px; line-height: 1.4; margin: 4px 0 0; }}
.chart > svg {{ width: 100%; height: auto; display: block; }}
svg.wide {{ display: none; }}
@media print, (min-width: 760px) {{
  .chart.wide {{ grid-column: span 2; }}
  .chart.wide > svg.wide {{ display: block; }}
  .chart.wide > svg.narrow {{ display: none; }}
}}
.legend {{
  list-style: none; margin: 2px 0 4px; padding: 0; display: flex; flex-wrap: wrap; gap: 0 14px;
  align-content: flex-start; font-size: 12.5px; line-height: 1.5;
}}
.legend li {{ display: flex; align-items: center; gap: 5px; min-width: 0; }}
.legend span {{ overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.legend b {{ color: var(--c); font-weight: 600; white-space: nowrap; }}
.swatch, .glyph {{ flex: none; display: inline-block; vertical-align: middle; }}
svg text {{ font-family: inherit; font-size: 11.5px; fill: var(--soft); font-variant-numeric: tabular-nums; }}
.middle {{ text-anchor: middle; }}
.end {{ text-anchor: end; }}
svg .phase {{ fill: var(--ink); font-weight: 600; }}
.grid {{ stroke: var(--grid); stroke-width: 1; }}
.axis {{ stroke: var(--soft); stroke-width: 1; }}
.boundary {{ stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }}
.line {{ fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }}
.band {{ fill: var(--c); opacity: 0.14; }}
.dots {{ fill: none; stroke: var(--c); stroke-width: 2.6; stroke-linecap: round; opacity: var(--faint); }}
.mark {{ fill: var(--c); stroke: var(--paper); stroke-width: 1; }}
.hollow {{ fill: var(--paper); stroke: var(--c); stroke-width: 2; }}
.whisker {{ stroke: var(--c); stroke-width: 2.5; stroke-linecap: round; }}
.feel {{ fill: transparent; }}
.problem {{ margin: 0 0 26px; break-inside: avoid; }}
.problem p {{ margin: 0 0 4px; }}
.question {{ white-space: pre-wrap; unicode-bidi: isolate; }}
.gold {{ color: var(--soft); font-size: 14px; }}
.pair {{ display: grid; grid-template-columns: 1fr 1fr; gap: 14px; margin-top: 8px; }}
.answer {{ min-width: 0; border-left: 4px solid; padding: 8px 12px 6px; border-radius: 0 6px 6px 0; }}
.answer.right {{ border-color: var(--right); background: var(--right-wash); }}
.answer.wrong {{ border-color: var(--wrong); background: var(--wrong-wash); }}
.head {{ display: flex; justify-content: space-between; font-size: 13.5px; }}
.verdict.right {{ color: var(--right); }}
.verdict.wrong {{ color: var(--wrong); }}
pre {{
  font: 13.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; margin: 4px 0 6px;
  white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;
}}
.formula {{ display: inline-block; max-width: 100%; overflow-x: auto; overflow-y: hidden; vertical-align: middle; }}
.formula.block {{ display: block; margin: 4px 0; }}
math {{ font-size: 1.15em; }}
.gold math, .facts math {{ math-style: normal; }}
/* A font without a table for mathematics sets fractions and limits without any air. */
mfrac > :first-child, munderover > :last-child {{ padding-bottom: 0.12em; }}
mfrac > :last-child, munderover > :nth-child(2), munder > :last-child {{ padding-top: 0.12em; }}
menclose {{ border: 1px solid; padding: 1px 3px; }}
.figures {{ width: 100%; }}
.figures th, .figures td {{ padding-top: 4px; padding-bottom: 4px; }}
.command {{ margin-bottom: 18px; background: var(--wash); padding: 10px 12px; border-radius: 6px; }}
@media screen and (max-width: 760px) {{
  main {{ padding: 20px 16px 48px; }}
  h1 {{ font-size: 23px; }}
  .headline {{ font-size: 18px; }}
  .tiles {{ grid-template-columns: 1fr 1fr; column-gap: 8px; }}
  .tiles div {{ margin-bottom: 8px; }}
  .tiles b {{ font-size: 20px; }}
  .pair {{ grid-template-columns: 1fr; gap: 8px; }}
  .words td small {{ display: block; margin: 0; }}
}}
@media screen and (min-width: 800px) and (max-width: 980px) {{
  .outcomes th:nth-child(4), .outcomes td:nth-child(4) {{ display: none; }}
}}
@media screen and (max-width: 800px) {{
  .stack thead {{ display: none; }}
  .stack, .stack tbody, .stack tr, .stack th, .stack td, .stack caption {{ display: block; width: 100%; }}
  .stack tr {{ padding: 0 0 10px; margin: 0 0 10px; border-bottom: 1px solid var(--rule); }}
  .stack th, .stack td {{ border: 0; padding: 2px 0; text-align: left; }}
  .stack td {{ display: flex; justify-content: flex-end; align-items: baseline; }}
  .stack td {{ flex-wrap: wrap; }}
  .stack td::before {{
    margin-right: auto; padding-right: 10px; white-space: normal; overflow-wrap: anywhere; content: attr(data-label);
    color: var(--soft); font-size: 13.5px;
  }}
  .stack td small {{ display: inline; margin-left: 6px; }}
}}
@media print {{
  @page {{ margin: 13mm; }}
  body {{ font-size: 12px; }}
  main {{ max-width: none; padding: 0; }}
  h1 {{ font-size: 22px; }}
  h2 {{ font-size: 16px; padding-top: 10px; }}
  h3 {{ font-size: 13px; }}
  section {{ margin-top: 18px; }}
  .headline {{ font-size: 15px; margin-top: 12px; }}
  .tiles {{ grid-template-columns: repeat(auto-fit, minmax(100px, 1fr)); column-gap: 8px; margin: 14px 0 0; }}
  .tiles div {{ padding: 8px 10px; margin-bottom: 8px; }}
  .tiles b {{ font-size: 16px; }}
  table, .made table, pre {{ font-size: 11px; }}
  small, thead th, .facts, .note, .size, .gold, .tiles dt, .chart .note, .head {{ font-size: 10.5px; }}
  th, td {{ padding: 4px 9px 4px 0; }}
  .outcomes .glyph {{ width: 150px; height: auto; }}
  .problem {{ margin-bottom: 16px; }}
  .answer {{ overflow: hidden; }}
  .formula {{ overflow: visible; }}
  .made {{ grid-template-columns: 1.3fr 1fr; }}
  tr {{ break-inside: avoid; }}
  .made th, .made td {{ padding-top: 2px; padding-bottom: 2px; }}
  h2, h3, .lead, .question, .gold, h2 + .note {{ break-after: avoid; }}
  .tiles div, .answer, .command, .trouble {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""
