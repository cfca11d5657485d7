"""Plans of Qwen2.5-7B on TPU slices, made without one: three that say whether it fits, or the table of docs/plan.md.

Lengths are those of configs/qwen2.5_7b_v5p_64.yaml; the three are compiled with less search.
Wants libtpu (the extra `tpu`). Ends with status 1 where a verdict is not the expected one.

    python benchmarks/plans.py --out runs/plans
    python benchmarks/plans.py --table --out runs/plans
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from remem_jax.plan import make_plan
from remem_jax.plan.report import report

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "qwen2.5_7b_v5p_64.yaml"
BUDGETS = {"v5e:8x8": 20480, "v5p:4x4x4": 65536, "v6e:8x8": 32768, "v5e:2x2": 20480}  # memory.token_budget
CHECKED = {
    ("v5e:8x8", "section_first"): True,
    ("v5p:4x4x4", "section_first"): True,
    ("v5e:2x2", "section_first"): False,
}
TABLE = [
    (topology, order) for topology in ("v5e:8x8", "v5p:4x4x4", "v6e:8x8") for order in ("section_first", "section_last")
]


def one(topology: str, order: str, fast: bool) -> dict[str, Any]:
    """The plan of a cell."""
    overrides = [f"agent.prompt_order={order}", f"memory.token_budget={BUDGETS[topology]}"]
    if topology == "v5e:2x2":
        overrides.append("mesh=[1,1,4]")
    return make_plan(str(CONFIG), overrides, topology=topology, fast=fast)


def row(cell: tuple[str, str], plan: dict[str, Any]) -> str:
    """A line of the table."""
    by_name = {found["name"]: found for found in plan["functions"]}
    peaks = [by_name[name].get("peak_bytes") for name in ("prefill", "decode step", "log-probs", "update")]
    cells = [*cell, *("-" if peak is None else f"{peak / 2**30:.1f}" for peak in peaks)]
    cells += ["yes" if plan["fits"] else "no: " + ", ".join(plan["does_not_fit"] or ["rollout"]), plan["slots"]]
    known = "step_seconds" in plan
    cells += [f"{plan['step_seconds']:,.0f}" if known else "-"]
    cells += [f"{plan['questions_an_hour']:,.0f}" if known else "-", f"{plan['chip_hours']:,.0f}" if known else "-"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="the cells of docs/plan.md instead of the three")
    parser.add_argument("--out", type=Path, default=Path("runs/plans"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows, wrong = [], []
    for cell in TABLE if args.table else CHECKED:
        plan = one(*cell, fast=not args.table)
        (args.out / ("_".join(map(str, cell)).replace(":", "_") + ".json")).write_text(
            json.dumps(plan, indent=1) + "\n"
        )
        print(f"{report(plan)}\n", flush=True)
        rows.append(row(cell, plan))
        if plan["fits"] != CHECKED.get(cell, plan["fits"]):
            wrong.append(cell)
    print("\n".join(rows))
    if wrong:
        sys.exit(f"expected other verdicts of {wrong}")


if __name__ == "__main__":
    main()
