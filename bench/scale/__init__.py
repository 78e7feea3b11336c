"""`thinwire allreduce` on many simulated ranks: python -m bench.scale."""
