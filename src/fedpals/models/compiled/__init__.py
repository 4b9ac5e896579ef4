"""The paper's small network on a CPU: one compiled call takes a whole training step, about ten times as fast as torch.

In: the rows of a batch in the client's images, the flat float32 vector of parameters, labels, and a factor and an
offset for each label's logit. Out: the mean loss and its flat gradient. What rules do to the gradient, clipping
and the optimiser stay outside, in torch. One thread and a fixed order of sums: the same bits every time on one kind of
processor, whatever the batch was before it.

::

    image, (H, W, C), read where it is
      │  pad_image: rows are multiples of a cache line apart
      │  split_planes: even | odd rows × even | odd columns × channels
      ▼
    planes   a row of pixels  0 1 2 3 4 5 …  becomes  0 2 4 … │ 1 3 5 …   so that LANES neighbouring pools read
      │                                                                   LANES neighbouring numbers
      │  first_layer: a vector is LANES pools; sums of 4 outputs a pool × 6 channels (2 where lanes are 8)
      ▼
    pixels   │ c0 c1 c2 c3 c4 c5 1 0 │ c0 c1 …   8 numbers a pixel, so that no vector crosses a cache line; the 1
      │                                          makes the gradient of the bias one of the kernel
      │  second_layer: a vector is its 16 channels; sums of 4 outputs × 4 pools (1 where lanes are 8)
      ▼
    outputs2, (n, 16·h·w) ── product ─► outputs3, (n, 120) ── product ─► outputs4, (n, 84) ── product ─► logits, (n, K)

Backward, a pool's gradient goes to its winner alone. The forward pass notes where winners are: for the first layer how
far the winner's window is from the pool's first (``shifts1``), for the second where its window starts (``places2``, −1
where ReLU gave 0). The gradient of a kernel is then Σ gradient · window, and that of the pixels gets gradient · kernel
at each window. Winners of the second layer are listed for four samples at a time, one channel after the other;
the kernel and its gradient stay in registers meanwhile.

=================  ==================================================================================================
`lanes`            vectors, and how Python writes the instructions of an innermost loop
`compiling`        how functions are compiled, and cached for the next process
`matrix`           the product of small matrices
`layout`           what lies where in the two work arrays
`convolutions`     the forward pass of both convolutions, with pools and ReLU
`gradients`        their backward pass
`step`             the whole step
`kernel`           the step for torch's tensors
`network`          the network as a torch module, which loads the compiler only when it computes
=================  ==================================================================================================

`LANES`, 8 or 16, is chosen by the processor; the environment variable FEDPALS_LANES overrides it. How fast it is, and
what was tried in vain, is in docs/kernel.md.
"""
