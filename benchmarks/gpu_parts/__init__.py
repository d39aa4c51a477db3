"""The parts of `benchmarks.gpu`, one module each: a function `main(part)` measures and writes."""
