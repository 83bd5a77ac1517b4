"""What a program can compute with on this machine, or why not: CPU, CUDA, ROCm, Metal, OpenCL, Vulkan."""
