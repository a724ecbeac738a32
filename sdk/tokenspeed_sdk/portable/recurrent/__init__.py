"""Recurrent layers: causal convolution, gated delta rule, KDA, over rows of state.

    offers      what is offered, as data
    rows        how a step's rows are cut: single tokens, and chunks of longer rows
    conv        causal convolution, then silu
    gates       how much heads forget and learn
    delta       both delta rules: what is launched
    step        kernel: one token a row
    chunks      kernels: what the tokens of a chunk are to each other; products of chunks and state

A step whose rows have one token each launches kernels that read all they need from device arrays,
and may be captured into a graph. Any other step is cut on the host.
"""
