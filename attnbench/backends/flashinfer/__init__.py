"""FlashInfer: dense and ragged batches, pages, blocks."""
