"""Writes what transformers computes, in float64, to <case>.npz.  Needs torch and transformers.

    PYTHONPATH=tests python -m parity.make_fixtures

Values are stored in float32 (relative error 6e-8). The float32 error of transformers itself is
printed; a seed whose experts nearly tie is refused.
"""

import importlib.metadata

import numpy as np
from parity import cases, oracle


def main() -> None:
  for case in cases.CASES:
    exact, single = oracle.run(case, double=True), oracle.run(case, double=False)
    assert exact["logits"].dtype == np.float64
    X = cases.CASES[case]["num_experts_per_tok"]
    order = np.sort(exact["router"], axis=-1)
    gap = (order[..., -X] - order[..., -X - 1]).min()
    error = np.abs(exact["logits"] - single["logits"]).max()
    print(
      f"{case}: logits rms {exact['logits'].std():.2f}, float32 error of transformers {error:.1e}, "
      f"nearest experts {gap:.1e} apart, loss {exact['loss']:.4f}"
    )
    assert gap > 1e-4, f"experts nearly tie: another seed for {case}"
    arrays = {k: v for k, v in exact.items() if k != "gradients"}
    arrays |= {"gradient:" + n: g for n, g in exact["gradients"].items()}
    arrays = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers")]
    np.savez_compressed(
      cases.HERE / f"{case}.npz", **arrays, float32_error=np.float32(error),
      versions=np.array(", ".join(versions)),
    )  # fmt: skip


if __name__ == "__main__":
  main()
