"""Parts of extraction: boxes, tags, sentences, and what a sentence states as the answer."""
