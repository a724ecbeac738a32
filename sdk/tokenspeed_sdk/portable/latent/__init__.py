"""Paged attention of latents: all query heads read one cached row a token, as key and as value.

offers      what is offered, as data
backend     the attention backend: plan, plan_decode, write, attend
tiles       sizes of tiles by shapes
parts       how the host cuts a step into parts of equal work
attend      kernel: the parts
merge       kernel: joins what several parts have of one tile
write       kernel: the step's own keys into their cells
"""
