"""The CSS that `picture` adds to `converter/report/page.css`; mesh axes are m0 to m3, kinds of memory k0 to k5."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """<style>
:root { --m0: light-dark(#3d6fb6, #7fb0f5); --m1: light-dark(#b7791f, #e2b04a); --m2: light-dark(#2f7d5b, #5fc296);
  --m3: light-dark(#8a4fa3, #c79be0); --k0: light-dark(#3d6fb6, #6f9fe3); --k1: light-dark(#93b1dd, #3f5f8f);
  --k2: light-dark(#2f7d5b, #5fc296); --k3: light-dark(#dba54a, #d9a441); --k4: light-dark(#c0563f, #ef8a75);
  --k5: light-dark(#8a4fa3, #c79be0) }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; color: var(--soft); margin: .3rem 0 .7rem }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .35rem;
  vertical-align: -.08rem }
.block { display: flex; flex-wrap: wrap; gap: .5rem .9rem; padding: .7rem 0; border-bottom: 1px solid var(--line) }
.block > b { flex: 0 0 100%; font-size: .85rem; font-weight: 600 }
.tensor { width: 8.6rem; font-size: .72rem; line-height: 1.3; overflow-wrap: anywhere }
.tensor svg { width: 76px; height: 48px } .tensor code { font-size: .72rem; display: block }
.tensor span { color: var(--soft); display: block }
.cell { fill: var(--pale); stroke: var(--card); stroke-width: 1 } .cell.whole { fill: var(--soft) }
.cell.m0 { fill: var(--m0) } .cell.m1 { fill: var(--m1) } .cell.m2 { fill: var(--m2) } .cell.m3 { fill: var(--m3) }
.lane { display: grid; grid-template-columns: 8rem 1fr; gap: .1rem .8rem; align-items: center; font-size: .85rem;
  margin: .5rem 0 }
.lane > span { text-align: right; color: var(--soft); overflow-wrap: anywhere }
.strip { display: flex; height: 1.3rem; border-radius: .25rem; overflow: hidden } .strip i { display: block }
.lane p { grid-column: 2; margin: 0; font-size: .78rem; color: var(--soft) }
.over { position: relative; height: 3.4rem; border-bottom: 1px solid var(--line) }
.over i { position: absolute; bottom: 50%; border-radius: 50%; transform: translate(-50%, 50%); opacity: .75 }
.over i.hides { opacity: .3 }
.memory { position: relative } .memory svg { height: 15rem }
.memory b { position: absolute; left: .4rem; font-size: .75rem; font-weight: 500; color: var(--soft);
  background: color-mix(in srgb, var(--card) 80%, transparent); padding: 0 .25rem }
.memory b.right { left: auto; right: .4rem }
.ends { position: relative; height: 1.2rem; color: var(--soft); font-size: .78rem } .ends span { position: absolute }
svg line.limit { stroke: var(--poor) }
.tick rect { stroke: var(--card) } .tick .f { fill: var(--m0) } .tick .b { fill: var(--m1) }
.tick text { fill: var(--card); font-size: 10px }
@media (max-width: 40rem) { .lane { grid-template-columns: 5.5rem 1fr } .tensor { width: 6.8rem } }
</style>"""
