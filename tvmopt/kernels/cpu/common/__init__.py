"""Parts that several CPU families share: loop nests, packing, costs."""
