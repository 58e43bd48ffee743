"""Plans a training: replicated and sharded rows, memories of a node, number of nodes (docs/training-plan.md).

description --popularity--> exchange, placement --> step times --> the fastest form for each number of nodes
"""
