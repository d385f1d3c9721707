"""What the processes of txmsg measure: the catalogue of all metrics, and how they are read, written down and served.

Modules that do the work know none of this: they count in plain integers, once per batch or per failure, which
`figures_of` of each process reads at a scrape.
"""
