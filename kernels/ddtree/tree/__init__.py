"""The draft tree by definition: canonical order, exact reference, walk oracle, trace records. Standard library only."""
