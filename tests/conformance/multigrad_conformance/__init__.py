"""The conformance suite: what a backend must pass, ours and strangers' alike.

    pytest --pyargs multigrad_conformance --backends=toy

Every op, VJP, rule, activation and Function, in every dtype, at every edge, against oracles in
wider precision. What a backend lacks or does differently is what it declares (`unsupported`,
`differences`); the rest must be right.
"""
