"""The report's page: a table of all loaders of the run, then a chapter for each of the first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from penstock.insight.words import figure, percent
from penstock.protocol import LoaderRow

from .chapters import Chapter, chapter, moment

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is asked of any network, whoever opens it wherever."""

STYLE = """
:root{color-scheme:light dark;--bg:#f5f7f8;--card:#fff;--ink:#15202a;--dim:#596773;--line:#dee4e8;--accent:#0b6e8f;
--good:#0f7355;--bad:#b3283c;--warn:#8a5a00;--compute:#1a936f;--starvation:#d1495b;--reorder-stall:#8a5cc2;
--pin-wait:#2e86de;--paused:#9aa5b1;--startup:#d9a441;--sampler:#2f8f83}
@media (prefers-color-scheme:dark){:root{--bg:#0d1318;--card:#151d24;--ink:#e7eef4;--dim:#94a4b2;--line:#26313b;
--accent:#4cc2e6;--good:#3ecf9b;--bad:#ff8794;--warn:#e9be6a;--compute:#3ecf9b;--starvation:#ff7b89;
--reorder-stall:#b794f6;--pin-wait:#6bb3ff;--paused:#6b7885;--startup:#e9be6a;--sampler:#5cc4b5}}
*{box-sizing:border-box;margin:0}
body{background:var(--bg);color:var(--ink);font:14px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums;
max-width:1360px;margin:0 auto;padding:24px}
h1{font-size:24px}h2{font-size:18px}h3{font-size:14px;margin-top:8px}
section,.table{display:grid;grid-template-columns:minmax(0,1fr);gap:14px;background:var(--card);
border:1px solid var(--line);border-radius:12px;padding:18px;margin-top:18px}
.table{overflow-x:auto}
.dim,time,text{color:var(--dim);fill:var(--dim)}.bad{color:var(--bad)}.good{color:var(--good)}
.verdict{border-left:4px solid var(--line);padding:4px 12px}.verdict.good{border-color:var(--good);color:inherit}
.verdict.warn{border-color:var(--warn)}.verdict.bad{border-color:var(--bad);color:inherit}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:8px 18px}
dt{color:var(--dim);font-size:12px}dd{margin:0 0 4px;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(360px,100%),1fr));gap:18px}
figcaption{font-size:13px}.key{white-space:nowrap;margin-right:8px;font-size:12px}
.key i{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:4px}
svg{width:100%;height:auto;display:block}svg polyline{fill:none;stroke-width:1.4}svg .band{opacity:.18}
svg text{font-size:10px}svg .axis{stroke:var(--line)}figure p{font-size:12px}
table{border-collapse:collapse;width:100%;font-size:13px}th{text-align:left;color:var(--dim);font-weight:500}
td,th{padding:5px 10px 5px 0;border-top:1px solid var(--line);vertical-align:top}
ul{list-style:none;padding:0}li{display:grid;grid-template-columns:auto minmax(0,1fr);gap:12px;padding:5px 0;
border-top:1px solid var(--line);font-size:13px;overflow-wrap:anywhere}
pre{overflow-x:auto;background:var(--bg);border-radius:8px;padding:10px;font-size:12px}a{color:var(--accent)}
@media print{body{background:none;padding:0}section{break-inside:auto}figure,tr{break-inside:avoid}}
"""


def page(run: str, at: float, rows: Sequence[LoaderRow], chapters: Sequence[Chapter]) -> str:
    """The whole file. `chapters` may be fewer than `rows`: those come first that training waits for most."""
    told = {each.detail.row.id for each in chapters}
    left = len(rows) - len(chapters)
    note = f'<p class="dim">{left} more loaders are in the table only.</p>' if left > 0 else ""
    title = f"Penstock report: {run}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="dim">As of {escape(moment(at))}; times are in that zone.</p>'
        f"{_table(rows, told)}{note}{''.join(map(chapter, chapters))}</main></body></html>"
    )


def waits(row: LoaderRow) -> float:
    """Share of the last seconds in which this loader kept its training waiting; 0: it does not run."""
    return row.waiting or 0.0


def _table(rows: Sequence[LoaderRow], told: set[str]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("Loader", "Rank", "Host", "State", "Epoch", "Workers", "Batches/s", "Waiting", "Verdict")
    )
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(_row(row, row.id in told) for row in rows)}</tbody></table></div>"
    )


def _row(row: LoaderRow, linked: bool) -> str:
    name = escape(row.identity.name)
    first = f'<a href="#{escape(row.id, quote=True)}">{name}</a>' if linked else name
    cells = [
        first,
        str(row.identity.rank),
        escape(row.identity.host),
        escape(f"{row.presence}, {row.state}"),
        str(row.epoch),
        str(row.workers),
        escape(figure(row.rates.batches)),
        escape(percent(waits(row))),
        escape(row.verdict.verdict),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
