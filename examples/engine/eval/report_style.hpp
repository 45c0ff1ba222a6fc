// How the report looks: light and dark, one column on narrow screens.
// SPDX-License-Identifier: MIT
#pragma once

namespace eval {

inline constexpr const char* report_style = R"css(
:root{--bg:#fff;--fg:#1c2126;--dim:#5d6771;--line:#d7dce1;--card:#f6f8fa;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e4e8ec;--dim:#98a3ad;--line:#343c44;--card:#1c2228}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1120px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p,.facts{color:var(--dim);margin:.3rem 0}
.facts{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;padding:0;list-style:none}.facts b{color:var(--fg)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1rem}
figure{margin:0;padding:.6rem;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600;font-size:.95rem}svg{display:block;width:100%;height:auto}
svg text{fill:var(--fg);font-size:12.5px}svg .label{fill:var(--dim);font-size:13.5px}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}.seam{stroke:var(--dim);stroke-dasharray:2 3}
.likely{stroke-width:1.2;opacity:.45}
.level{stroke:var(--fg);stroke-width:1.4;stroke-dasharray:6 4}
polyline{fill:none;stroke-width:1.6;opacity:.75}.m{stroke:var(--card);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;align-content:center;gap:.15rem 1rem;margin:.6rem 0;padding:0;list-style:none;font-size:.9rem}
.legend li{display:flex;align-items:center;gap:.35rem}.legend svg{width:16px;height:16px}
.legend i{width:13px;height:13px;border-radius:3px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.6rem 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;min-width:100%;
overflow-wrap:normal}
th,td{padding:.35rem .65rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{background:var(--card);font-weight:600}tr:last-child td{border-bottom:0}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
td.why{white-space:normal;text-align:left;color:var(--dim);min-width:18rem}
.says{margin:.5rem 0;padding:.7rem 1rem .7rem 2rem;background:var(--card);border:1px solid var(--line);border-radius:8px}
.says li{margin:.25rem 0}
details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}
.bars{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr 4.6rem;gap:.25rem .7rem;align-items:center;
font-size:.88rem;margin:.5rem 0}
.bars div{display:flex;height:15px;border-radius:3px;overflow:hidden}.bars em{font-style:normal;text-align:right;
font-variant-numeric:tabular-nums}
@media(max-width:560px){svg text{font-size:15px}svg .label{font-size:16px}.bars{grid-template-columns:1fr 4.6rem}.bars span{grid-column:1/-1;margin-top:.3rem}}
)css";

} // namespace eval
