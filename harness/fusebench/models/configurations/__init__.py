"""One file per family of transformers: shapes, inputs, and the subclasses that call fused ops."""
