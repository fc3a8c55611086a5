"""Questions, demonstrations, preference pairs, chat format, tokenizer, packing and loading."""
