"""Parts of extraction: boxes, tags, sentences, and the answer that a sentence states."""
