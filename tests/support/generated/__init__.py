"""Generated machines: what drivers and kernel report, and the laws that the accounting of every machine keeps."""
