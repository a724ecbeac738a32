"""The placement compiler: one model text, any mesh of ranks.

forward, traced once -> graph -> layouts and collectives -> program -> run on every rank
(trace, graph)                   (mesh, layout, rule,       (program)
                                  compiler, cost)
"""
