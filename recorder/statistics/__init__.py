"""Statistics: how many numbers a leaf has, their mean, spread, ends and quantiles, gathered as they stream by."""
