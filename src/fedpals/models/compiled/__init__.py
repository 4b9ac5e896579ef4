"""The paper's small network on a CPU: one compiled call takes a whole training step.

In: the rows of a batch in the client's images, the flat float32 vector of parameters, labels, and a factor and an
offset for each label's logit. Out: the mean loss and its flat gradient. What rules do to the gradient, clipping
and the optimiser stay outside, in torch. One thread and a fixed order of sums: the same bits every time on one kind of
processor, whatever the batch was before it.

=================  ==================================================================================================
`processor`        what depends on the processor: how wide vectors are
`lanes`            vectors, and how Python writes the instructions of an innermost loop
`compiling`        how functions are compiled
`loading`          machine code, kept on disk for the next process
`matrix`           the product of small matrices
`layout`           what lies where in the two work arrays
`convolutions`     the forward pass of both convolutions, with pools and ReLU
`gradients`        their backward pass with 8 lanes
`gradients_wide`   the same with 16
`step`             the whole step
`native`           the step in machine code: compiled, or loaded without the compiler
`kernel`           the step for torch's tensors
`network`          the network as a torch module, which loads the compiler only when it computes
=================  ==================================================================================================

What lies where, and why, is explained with a picture in docs/kernel.md.
"""
