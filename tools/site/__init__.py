"""The course as one folder of pages that live without a kernel: `make site`."""
