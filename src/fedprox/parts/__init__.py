"""The parts, features that the engine knows only by the questions of `part`.

A message passes these parts on its way from a client into the server's step, in this order:

1. On the client, `compression` codes it by one of `codecs`, or `privacy` clips it.
2. In experiments, `attack` replaces the messages of dishonest clients.
3. The engine, or a node, adds it to a sum.
4. `faults` leaves out messages that are not finite or too large, and divides the sum by the weight
   that counts. A rule of `robust` may take the place of this mean.
5. `privacy` adds noise, and the method's `update` reads the result.

Simulations and deployments call the same functions.
"""
