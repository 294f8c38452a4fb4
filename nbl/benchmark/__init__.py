"""What a round costs: `python scripts/benchmark.py`. Every number is process time on one thread, every claim a ratio
of two things timed in turn in one run, because machines are shared and noisy.
"""
