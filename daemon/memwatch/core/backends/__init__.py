"""Compute backends on this machine, and why others are unavailable: CPU, CUDA, ROCm, Metal, OpenCL, Vulkan."""
