"""The pipeline's stages: functions from (config, inputs) to files and a result."""
