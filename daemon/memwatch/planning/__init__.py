"""Will it fit: what a model takes, from its shape or from its files' headers, and where there is room for it."""
