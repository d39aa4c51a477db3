"""What happens to a message on its way from a client into the server's step.

In order: `compression` codes it by one of `codecs`, or `private` clips it, where it is made; in
experiments, `attack` replaces those of dishonest clients; the engine adds it to a sum, or a node
does; `faults` leaves out what is not finite or too large, and divides by the weight that counts; a
rule of `robust` may take the place of this mean; then `private` adds noise, and the method's
`update` reads it. Each of them is a part, which the engine knows only by the questions of `part`.
Simulations and deployments call the same functions.
"""
