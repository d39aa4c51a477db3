"""The parts, features that the engine knows only by the questions of `part`.

What happens to a message on its way from a client into the server's step, in order: `compression`
codes it by one of `codecs`, or `privacy` clips it, where it is made; in experiments, `attack`
replaces those of dishonest clients; the engine adds it to a sum, or a node does; `faults` leaves
out what is not finite or too large, and divides by the weight that counts; a rule of `robust` may
take the place of this mean; then `privacy` adds noise, and the method's `update` reads it.
Simulations and deployments call the same functions.
"""
