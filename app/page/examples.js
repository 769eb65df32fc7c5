/** The published example, bare and as the published benchmarks wrap it, and more of its kind. The demo knows them. */

const TRAIN = "A train travels 60 miles in 2 hours. What is its average speed?";
const APPLES = "Tom has 12 apples and gives 5 to Anna. How many apples does he have left?";
const FENCE = "How long is a fence around a garden of 29 by 15 meters?";

export const EXAMPLES = [
  { name: "Train", prompt: TRAIN },
  { name: "Train, step by step", prompt: `Solve the problem step by step.\n\nQuestion: ${TRAIN}\nAnswer:` },
  { name: "Apples", prompt: APPLES },
  { name: "Fence", prompt: FENCE },
];
