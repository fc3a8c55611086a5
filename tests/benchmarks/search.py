"""Times the search service on the packaged atlas: `python tests/benchmarks/search.py`.

Prints milliseconds a query, in process, for one and ten results, in renamed worlds.
"""

import statistics
import time

from searchjax.search.atlas import load_atlas
from searchjax.search.server import SearchService
from searchjax.search.worlds import World


def main() -> None:
  atlas = load_atlas()
  service = SearchService(atlas)
  entities = list(atlas.entities.values())[1000:1501]
  print("results  median ms  95 % ms")
  for results in (1, 10):
    took = []
    for seed, entity in enumerate(entities):
      query = f"{World(atlas, seed).name(entity.id)} country"
      begun = time.perf_counter()
      service.search(query, results, seed)
      took.append(1e3 * (time.perf_counter() - begun))
    print(f"{results:7d}  {statistics.median(took):9.2f}  {statistics.quantiles(took, n=20)[-1]:7.2f}")


if __name__ == "__main__":
  main()
