/* Written by tests/harness/judge-templates with jinja2 3.1.6: its output for
 * the templates in this folder. NULL: it fails. */
/* clang-format off */

static const judged_message judged_messages[][8] = {
    /* one question */
    {{"user", "What is a ring?"}},
    /* a system message */
    {{"system", " Be brief. \n"},
     {"user", "What is a ring?"}},
    /* two turns */
    {{"user", " One \n"},
     {"assistant", "\n"
     " First.\n"},
     {"user", "\303\251 <|im_end|> {{ x }}"}},
    /* thoughts */
    {{"system", "Think."},
     {"user", "One"},
     {"assistant", "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First."},
     {"user", "Two"},
     {"assistant", "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second."},
     {"user", "Three"}},
    /* an answer at the end */
    {{"user", "One"},
     {"assistant", "<think>a</think>First."}},
    /* empty texts */
    {{"system", ""},
     {"user", ""},
     {"assistant", ""},
     {"user", "Yes?"}},
    /* not in turns */
    {{"user", "One"},
     {"user", "Two"}},
};

static const bool judged_opens[] = {true, true, true, true, false, true, true};

static const judged_family judged_families[] = {
    {"tests/templates/chatml.jinja", 0,
     "<|im_start|>system\n"
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/chatml.jinja", 1,
     "<|im_start|>system\n"
     " Be brief. \n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/chatml.jinja", 2,
     "<|im_start|>system\n"
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
     "<|im_start|>user\n"
     " One \n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "\n"
     " First.\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "\303\251 <|im_end|> {{ x }}<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/chatml.jinja", 3,
     "<|im_start|>system\n"
     "Think.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|im_end|>\n"
     "<|im_start|>user\n"
     "Three<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/chatml.jinja", 4,
     "<|im_start|>system\n"
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>a</think>First.<|im_end|>\n"},
    {"tests/templates/chatml.jinja", 5,
     "<|im_start|>system\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "Yes?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/chatml.jinja", 6,
     "<|im_start|>system\n"
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/command-r.jinja", 0,
     "<s><|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is a ring?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"tests/templates/command-r.jinja", 1,
     "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|> Be brief. \n"
     "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is a ring?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"tests/templates/command-r.jinja", 2,
     "<s><|START_OF_TURN_TOKEN|><|USER_TOKEN|>One<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>First.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>\303\251 <|im_end|> {{ x }}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"tests/templates/command-r.jinja", 3,
     "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Think.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>One<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Two<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Three<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"tests/templates/command-r.jinja", 4,
     "<s><|START_OF_TURN_TOKEN|><|USER_TOKEN|>One<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><think>a</think>First.<|END_OF_TURN_TOKEN|>"},
    {"tests/templates/command-r.jinja", 5,
     "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Yes?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"tests/templates/command-r.jinja", 6,
     NULL},
    {"tests/templates/deepseek-r1.jinja", 0,
     "<s><\357\275\234User\357\275\234>What is a ring?<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/deepseek-r1.jinja", 1,
     "<s> Be brief. \n"
     "<\357\275\234User\357\275\234>What is a ring?<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/deepseek-r1.jinja", 2,
     "<s><\357\275\234User\357\275\234> One \n"
     "<\357\275\234Assistant\357\275\234>\n"
     " First.\n"
     "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234><\357\275\234User\357\275\234>\303\251 <|im_end|> {{ x }}<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/deepseek-r1.jinja", 3,
     "<s>Think.<\357\275\234User\357\275\234>One<\357\275\234Assistant\357\275\234>\n"
     "\n"
     "First.<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234><\357\275\234User\357\275\234>Two<\357\275\234Assistant\357\275\234>\n"
     "\n"
     "Second.<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234><\357\275\234User\357\275\234>Three<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/deepseek-r1.jinja", 4,
     "<s><\357\275\234User\357\275\234>One<\357\275\234Assistant\357\275\234>First.<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"},
    {"tests/templates/deepseek-r1.jinja", 5,
     "<s><\357\275\234User\357\275\234><\357\275\234Assistant\357\275\234><\357\275\234end\342\226\201of\342\226\201sentence\357\275\234><\357\275\234User\357\275\234>Yes?<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/deepseek-r1.jinja", 6,
     "<s><\357\275\234User\357\275\234>One<\357\275\234User\357\275\234>Two<\357\275\234Assistant\357\275\234><think>\n"},
    {"tests/templates/gemma-3.jinja", 0,
     "<s><start_of_turn>user\n"
     "What is a ring?<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma-3.jinja", 1,
     "<s><start_of_turn>user\n"
     " Be brief. \n"
     "\n"
     "\n"
     "What is a ring?<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma-3.jinja", 2,
     "<s><start_of_turn>user\n"
     "One<end_of_turn>\n"
     "<start_of_turn>model\n"
     "First.<end_of_turn>\n"
     "<start_of_turn>user\n"
     "\303\251 <|im_end|> {{ x }}<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma-3.jinja", 3,
     "<s><start_of_turn>user\n"
     "Think.\n"
     "\n"
     "One<end_of_turn>\n"
     "<start_of_turn>model\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<end_of_turn>\n"
     "<start_of_turn>user\n"
     "Two<end_of_turn>\n"
     "<start_of_turn>model\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<end_of_turn>\n"
     "<start_of_turn>user\n"
     "Three<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma-3.jinja", 4,
     "<s><start_of_turn>user\n"
     "One<end_of_turn>\n"
     "<start_of_turn>model\n"
     "<think>a</think>First.<end_of_turn>\n"},
    {"tests/templates/gemma-3.jinja", 5,
     "<s><start_of_turn>user\n"
     "\n"
     "\n"
     "<end_of_turn>\n"
     "<start_of_turn>model\n"
     "<end_of_turn>\n"
     "<start_of_turn>user\n"
     "Yes?<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma-3.jinja", 6,
     NULL},
    {"tests/templates/gemma.jinja", 0,
     "<s><start_of_turn>user\n"
     "What is a ring?<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma.jinja", 1,
     NULL},
    {"tests/templates/gemma.jinja", 2,
     "<s><start_of_turn>user\n"
     "One<end_of_turn>\n"
     "<start_of_turn>model\n"
     "First.<end_of_turn>\n"
     "<start_of_turn>user\n"
     "\303\251 <|im_end|> {{ x }}<end_of_turn>\n"
     "<start_of_turn>model\n"},
    {"tests/templates/gemma.jinja", 3,
     NULL},
    {"tests/templates/gemma.jinja", 4,
     "<s><start_of_turn>user\n"
     "One<end_of_turn>\n"
     "<start_of_turn>model\n"
     "<think>a</think>First.<end_of_turn>\n"},
    {"tests/templates/gemma.jinja", 5,
     NULL},
    {"tests/templates/gemma.jinja", 6,
     NULL},
    {"tests/templates/llama-2.jinja", 0,
     "<s>[INST] What is a ring? [/INST]"},
    {"tests/templates/llama-2.jinja", 1,
     "<s>[INST] <<SYS>>\n"
     " Be brief. \n"
     "\n"
     "<</SYS>>\n"
     "\n"
     "What is a ring? [/INST]"},
    {"tests/templates/llama-2.jinja", 2,
     "<s>[INST] One [/INST] First. </s><s>[INST] \303\251 <|im_end|> {{ x }} [/INST]"},
    {"tests/templates/llama-2.jinja", 3,
     "<s>[INST] <<SYS>>\n"
     "Think.\n"
     "<</SYS>>\n"
     "\n"
     "One [/INST] <think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First. </s><s>[INST] Two [/INST] <think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second. </s><s>[INST] Three [/INST]"},
    {"tests/templates/llama-2.jinja", 4,
     "<s>[INST] One [/INST] <think>a</think>First. </s>"},
    {"tests/templates/llama-2.jinja", 5,
     "<s>[INST] <<SYS>>\n"
     "\n"
     "<</SYS>> [/INST]  </s><s>[INST] Yes? [/INST]"},
    {"tests/templates/llama-2.jinja", 6,
     NULL},
    {"tests/templates/llama-3.1.jinja", 0,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.1.jinja", 1,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.1.jinja", 2,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "\303\251 <|im_end|> {{ x }}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.1.jinja", 3,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "Think.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Three<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.1.jinja", 4,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>a</think>First.<|eot_id|>"},
    {"tests/templates/llama-3.1.jinja", 5,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Yes?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.1.jinja", 6,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 26 Jul 2024\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 0,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 1,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 2,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "\303\251 <|im_end|> {{ x }}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 3,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "Think.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Three<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 4,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>a</think>First.<|eot_id|>"},
    {"tests/templates/llama-3.2.jinja", 5,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Yes?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.2.jinja", 6,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Cutting Knowledge Date: December 2023\n"
     "Today Date: 04 Jul 2026\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 0,
     "<s><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 1,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "What is a ring?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 2,
     "<s><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "\303\251 <|im_end|> {{ x }}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 3,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "Think.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Three<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 4,
     "<s><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<think>a</think>First.<|eot_id|>"},
    {"tests/templates/llama-3.jinja", 5,
     "<s><|start_header_id|>system<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Yes?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/llama-3.jinja", 6,
     "<s><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "One<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
     "\n"
     "Two<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
     "\n"},
    {"tests/templates/macros.jinja", 0,
     "[USER] 0\n"
     "<|user|>: What is a ring?\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 1,
     "[USER] 1\n"
     "<|system|>: Be brief.\n"
     "<|user|>: What is a ring?\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 2,
     "[USER, ASSISTANT, USER] 2\n"
     "<|user|>: One\n"
     "<|assistant|>: First.\n"
     "<|user|>: \303\251 <|im_end|> {{ x }}\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 3,
     "[USER, ASSISTANT, USER, ASSISTANT, USER] 5\n"
     "<|system|>: Think.\n"
     "<|user|>: One\n"
     "<|assistant|>: <think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.\n"
     "<|user|>: Two\n"
     "<|assistant|>: <think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 4,
     "[USER, ASSISTANT] 0\n"
     "<|user|>: One\n"
     "<|assistant|>: <think>a</think>First.\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 5,
     "[USER, ASSISTANT, USER] 3\n"
     "<|system|>: \n"
     "<|user|>: \n"
     "<|assistant|>: \n"
     "<|user|>: Yes?\n"
     "<|end|>\n"},
    {"tests/templates/macros.jinja", 6,
     "[USER, USER] 1\n"
     "<|user|>: One\n"
     "<|user|>: Two\n"
     "<|end|>\n"},
    {"tests/templates/mistral.jinja", 0,
     "<s>[INST]What is a ring?[/INST]"},
    {"tests/templates/mistral.jinja", 1,
     "<s>[INST] Be brief. \n"
     "\n"
     "\n"
     "What is a ring?[/INST]"},
    {"tests/templates/mistral.jinja", 2,
     "<s>[INST] One \n"
     "[/INST]\n"
     " First.\n"
     "</s>[INST]\303\251 <|im_end|> {{ x }}[/INST]"},
    {"tests/templates/mistral.jinja", 3,
     "<s>[INST]One[/INST]<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.</s>[INST]Two[/INST]<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.</s>[INST]Think.\n"
     "\n"
     "Three[/INST]"},
    {"tests/templates/mistral.jinja", 4,
     "<s>[INST]One[/INST]<think>a</think>First.</s>"},
    {"tests/templates/mistral.jinja", 5,
     "<s>[INST][/INST]</s>[INST]\n"
     "\n"
     "Yes?[/INST]"},
    {"tests/templates/mistral.jinja", 6,
     NULL},
    {"tests/templates/phi-3.jinja", 0,
     "<|user|>\n"
     "What is a ring?<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-3.jinja", 1,
     "<|system|>\n"
     " Be brief. \n"
     "<|end|>\n"
     "<|user|>\n"
     "What is a ring?<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-3.jinja", 2,
     "<|user|>\n"
     " One \n"
     "<|end|>\n"
     "<|assistant|>\n"
     "\n"
     " First.\n"
     "<|end|>\n"
     "<|user|>\n"
     "\303\251 <|im_end|> {{ x }}<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-3.jinja", 3,
     "<|system|>\n"
     "Think.<|end|>\n"
     "<|user|>\n"
     "One<|end|>\n"
     "<|assistant|>\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|end|>\n"
     "<|user|>\n"
     "Two<|end|>\n"
     "<|assistant|>\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|end|>\n"
     "<|user|>\n"
     "Three<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-3.jinja", 4,
     "<|user|>\n"
     "One<|end|>\n"
     "<|assistant|>\n"
     "<think>a</think>First.<|end|>\n"
     "</s>"},
    {"tests/templates/phi-3.jinja", 5,
     "<|user|>\n"
     "<|end|>\n"
     "<|assistant|>\n"
     "<|end|>\n"
     "<|user|>\n"
     "Yes?<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-3.jinja", 6,
     "<|user|>\n"
     "One<|end|>\n"
     "<|user|>\n"
     "Two<|end|>\n"
     "<|assistant|>\n"},
    {"tests/templates/phi-4.jinja", 0,
     "<|im_start|>user<|im_sep|>What is a ring?<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/phi-4.jinja", 1,
     "<|im_start|>system<|im_sep|> Be brief. \n"
     "<|im_end|><|im_start|>user<|im_sep|>What is a ring?<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/phi-4.jinja", 2,
     "<|im_start|>user<|im_sep|> One \n"
     "<|im_end|><|im_start|>assistant<|im_sep|>\n"
     " First.\n"
     "<|im_end|><|im_start|>user<|im_sep|>\303\251 <|im_end|> {{ x }}<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/phi-4.jinja", 3,
     "<|im_start|>system<|im_sep|>Think.<|im_end|><|im_start|>user<|im_sep|>One<|im_end|><|im_start|>assistant<|im_sep|><think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|im_end|><|im_start|>user<|im_sep|>Two<|im_end|><|im_start|>assistant<|im_sep|><think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|im_end|><|im_start|>user<|im_sep|>Three<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/phi-4.jinja", 4,
     "<|im_start|>user<|im_sep|>One<|im_end|><|im_start|>assistant<|im_sep|><think>a</think>First.<|im_end|>"},
    {"tests/templates/phi-4.jinja", 5,
     "<|im_start|>system<|im_sep|><|im_end|><|im_start|>user<|im_sep|><|im_end|><|im_start|>assistant<|im_sep|><|im_end|><|im_start|>user<|im_sep|>Yes?<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/phi-4.jinja", 6,
     "<|im_start|>user<|im_sep|>One<|im_end|><|im_start|>user<|im_sep|>Two<|im_end|><|im_start|>assistant<|im_sep|>"},
    {"tests/templates/qwen2.5.jinja", 0,
     "<|im_start|>system\n"
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen2.5.jinja", 1,
     "<|im_start|>system\n"
     " Be brief. \n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen2.5.jinja", 2,
     "<|im_start|>system\n"
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
     "<|im_start|>user\n"
     " One \n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "\n"
     " First.\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "\303\251 <|im_end|> {{ x }}<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen2.5.jinja", 3,
     "<|im_start|>system\n"
     "Think.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|im_end|>\n"
     "<|im_start|>user\n"
     "Three<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen2.5.jinja", 4,
     "<|im_start|>system\n"
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>a</think>First.<|im_end|>\n"},
    {"tests/templates/qwen2.5.jinja", 5,
     "<|im_start|>system\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "Yes?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen2.5.jinja", 6,
     "<|im_start|>system\n"
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.5.jinja", 0,
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.5.jinja", 1,
     "<|im_start|>system\n"
     "Be brief.<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.5.jinja", 2,
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "\303\251 <|im_end|> {{ x }}<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.5.jinja", 3,
     "<|im_start|>system\n"
     "Think.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "Second.<|im_end|>\n"
     "<|im_start|>user\n"
     "Three<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.5.jinja", 4,
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "a\n"
     "</think>\n"
     "\n"
     "First.<|im_end|>\n"},
    {"tests/templates/qwen3.5.jinja", 5,
     "<|im_start|>system\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "Yes?<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.5.jinja", 6,
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"},
    {"tests/templates/qwen3.jinja", 0,
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.jinja", 1,
     "<|im_start|>system\n"
     " Be brief. \n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.jinja", 2,
     "<|im_start|>user\n"
     " One \n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "\n"
     " First.\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "\303\251 <|im_end|> {{ x }}<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.jinja", 3,
     "<|im_start|>system\n"
     "Think.<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "Second.<|im_end|>\n"
     "<|im_start|>user\n"
     "Three<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.jinja", 4,
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "a\n"
     "</think>\n"
     "\n"
     "First.<|im_end|>\n"},
    {"tests/templates/qwen3.jinja", 5,
     "<|im_start|>system\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "Yes?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/qwen3.jinja", 6,
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 0,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "You are a helpful AI assistant named SmolLM.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 1,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     " Be brief.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "What is a ring?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 2,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "You are a helpful AI assistant named SmolLM.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     " One \n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     " First.\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "\303\251 <|im_end|> {{ x }}<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 3,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "Think.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.<|im_end|>\n"
     "<|im_start|>user\n"
     "Three<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 4,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "You are a helpful AI assistant named SmolLM.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<think>a</think>First.<|im_end|>\n"},
    {"tests/templates/smollm3.jinja", 5,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "You are a helpful AI assistant named SmolLM.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "<|im_end|>\n"
     "<|im_start|>assistant\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "Yes?<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/smollm3.jinja", 6,
     "<|im_start|>system\n"
     "## Metadata\n"
     "\n"
     "Knowledge Cutoff Date: June 2025\n"
     "Today Date: 04 July 2026\n"
     "Reasoning Mode: /think\n"
     "\n"
     "## Custom Instructions\n"
     "\n"
     "You are a helpful AI assistant named SmolLM.\n"
     "\n"
     "<|im_end|>\n"
     "<|im_start|>user\n"
     "One<|im_end|>\n"
     "<|im_start|>user\n"
     "Two<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"tests/templates/zephyr.jinja", 0,
     "<|user|>\n"
     "What is a ring?</s>\n"
     "<|assistant|>\n"},
    {"tests/templates/zephyr.jinja", 1,
     "<|system|>\n"
     " Be brief. \n"
     "</s>\n"
     "<|user|>\n"
     "What is a ring?</s>\n"
     "<|assistant|>\n"},
    {"tests/templates/zephyr.jinja", 2,
     "<|user|>\n"
     " One \n"
     "</s>\n"
     "<|assistant|>\n"
     "\n"
     " First.\n"
     "</s>\n"
     "<|user|>\n"
     "\303\251 <|im_end|> {{ x }}</s>\n"
     "<|assistant|>\n"},
    {"tests/templates/zephyr.jinja", 3,
     "<|system|>\n"
     "Think.</s>\n"
     "<|user|>\n"
     "One</s>\n"
     "<|assistant|>\n"
     "<think>\n"
     "Hm.\n"
     "</think>\n"
     "\n"
     "First.</s>\n"
     "<|user|>\n"
     "Two</s>\n"
     "<|assistant|>\n"
     "<think>\n"
     "\n"
     "</think>\n"
     "\n"
     "Second.</s>\n"
     "<|user|>\n"
     "Three</s>\n"
     "<|assistant|>\n"},
    {"tests/templates/zephyr.jinja", 4,
     "<|user|>\n"
     "One</s>\n"
     "<|assistant|>\n"
     "<think>a</think>First.</s>\n"},
    {"tests/templates/zephyr.jinja", 5,
     "<|system|>\n"
     "</s>\n"
     "<|user|>\n"
     "</s>\n"
     "<|assistant|>\n"
     "</s>\n"
     "<|user|>\n"
     "Yes?</s>\n"
     "<|assistant|>\n"},
    {"tests/templates/zephyr.jinja", 6,
     "<|user|>\n"
     "One</s>\n"
     "<|user|>\n"
     "Two</s>\n"
     "<|assistant|>\n"},
};

static const judged_line judged_lines[] = {
    {"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 // -2 }}\n",
     "7 9 3 -4 1 2 -2 3"},
    {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 1.5 + 1 }} {{ 7.5 // 2 }} {{ 2.5 * 2 }} {{ 1 / 3 }} {{ 0.1 + 0.2 }}\n",
     "3.5 3.0 2.5 3.0 5.0 0.3333333333333333 0.30000000000000004"},
    {"{{ 100000000.0 * 100000000.0 }} {{ 1.0 / 10000 }} {{ 1.0 / 100000 }} {{ -0.5 }} {{ 7.5 % 2 }} {{ 123456.789 }}\n",
     "1e+16 0.0001 1e-05 -0.5 1.5 123456.789"},
    {"{{ 'a' + 'b' ~ 1 ~ none ~ true }} {{ 1 ~ 2 + 3 }}\n",
     NULL},
    {"{{ 'a' \"b\" 'c' }}\n",
     "abc"},
    {"{{ 'it\\'s\\t\"x\"\\\\ \\x41\\u00e9\\U0001F600 \\q' }}\n",
     "it's\011\"x\"\\ A\303\251\360\237\230\200 \\q"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ 'ab' > 'a' }} {{ 2 >= 2.0 }}\n",
     "True False True True True True True True"},
    {"{{ none == false }} {{ '' == none }} {{ undefined_name == other_name }} {{ [1, 'a'] == [1, 'a'] }} {{ {'a': 1} == {'a': 1} }} {{ [1] != [2] }}\n",
     "False False True True True True"},
    {"{{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ '' in 'a' }} {{ 3 in [] }} {{ not 1 in [1] }} {{ 'a' in missing }}\n",
     "True True True True True False False False"},
    {"{{ true and false or true }} {{ 0 or 'x' }} {{ 'a' and 'b' }} {{ not none }} {{ '' or none or 0 }}\n",
     "True x b True 0"},
    {"{{ 'a' if true else 'b' }} {{ 'a' if false else 'b' if false else 'c' }} [{{ 'a' if false }}] {{ ('x' if false) is defined }}\n",
     "a c [] False"},
    {"{{ missing }}|{{ missing is defined }}|{{ missing | default('d') }}|{{ '' | default('d') }}|{{ '' | default('d', true) }}|{{ none | default('d') }}|{{ missing | default }}|{{ none | d('e', boolean=true) }}\n",
     "|False|d||d|None||e"},
    {"{{ missing | length }} {{ missing | trim }} {{ missing | list | length }} {% for x in missing %}x{% else %}none{% endfor %}\n",
     "0  0 none"},
    {"{{ none | trim }} {{ 3 | string | length }} {{ true | string }} {{ 2.0 | string }}\n",
     "None 1 True 2.0"},
    {"{{ missing.attribute }}\n",
     NULL},
    {"{{ missing['item'] }}\n",
     NULL},
    {"{{ missing + 'a' }}\n",
     NULL},
    {"{{ missing() }}\n",
     NULL},
    {"{{ none.x is defined }} {{ none['x'] is defined }} {{ 'abc'.x is defined }} {{ 5 .x is defined }}\n",
     "False False False False"},
    {"{{ 'a' + 1 }}\n",
     NULL},
    {"{{ 'a' + none }}\n",
     NULL},
    {"{{ [1] + [2] | length }}\n",
     NULL},
    {"{{ ([1] + [2]) | length }} {{ ([1, 2] + ['a']) | join('-') }} {{ [1, 2, 3] | join }} {{ ['a', none, 2] | join(', ') }} {{ 'abc' | join('.') }}\n",
     "2 1-2-a 123 a, None, 2 a.b.c"},
    {"{{ '  x y ' | trim }}|{{ ' x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.strip('ab') }}|{{ 'xxaxx' | trim('x') }}|{{ '   '.strip() }}|\n",
     "x y|x|x | x|a|c|a||"},
    {"{{ ' a\343\200\200 '.strip() }}| {{ '\303\251a\303\251'.strip('\303\251') }} {{ 'a\303\251'.rstrip('\303\251') }} {{ '\\n\\t x \\r\\f\\v\\x1c'.strip() }}|\n",
     "a| a a x|"},
    {"{{ 'a,b,,c'.split(',') | join('|') }} {{ ' a  b c '.split() | join('|') }} {{ 'a,b,c'.split(',', 1) | join('|') }} {{ ''.split(',') | length }} {{ ''.split() | length }} {{ 'abcabc'.split('bc') | join('|') }} {{ 'x'.split('</think>')[-1] }} {{ 'a</think>b'.split('</think>')[0] }}\n",
     "a|b||c a|b|c a|b,c 1 0 a|a| x a"},
    {"{{ 'a'.split('') }}\n",
     NULL},
    {"{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith('lo') }} {{ 'Hello'.startswith('Hello!') }} {{ 'a'.endswith('') }}\n",
     "True True False True"},
    {"{{ 'aXbXc'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'aXb' | replace('X', '') }} {{ 'aaaa'.replace('aa', 'b') }} {{ 'a'.replace('b', 'c') }} {{ 5 | replace('5', '6') }}\n",
     "a--b--c bba ab bb a 6"},
    {"{{ 'aBc dE' | upper }} {{ 'aBc dE' | lower }} {{ \"it's a dog-house 3rd\" .title() }} {{ 'aBc'.upper() }} {{ 'aBc'.lower() }}\n",
     "ABC DE abc de It'S A Dog-House 3Rd ABC abc"},
    {"{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first is defined }} {{ [3, 1] | length }} {{ 'h\303\251\303\251' | length }} {{ {'a': 1} | length }} {{ [1] | count }}\n",
     "1 3 a c False 2 3 1 1"},
    {"{{ [1, 2, 3] | reverse | join }} {{ 'abc' | reverse }} {{ 'abc'[::-1] }} {{ [1, 2, 3][::-1] | join }}\n",
     "321 cba cba 321"},
    {"{{ 'abcdef'[1:3] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[:-2] }} {{ 'abcdef'[::2] }} {{ 'abcdef'[4:1:-1] }} {{ 'abcdef'[10:] }}| {{ 'abcdef'[-100:2] }} {{ 'abcdef'[5:2] }}| {{ 'abcdef'[-1::-2] }} {{ 'abcdef'[:2:-1] }} {{ 'abcdef'[:] }} {{ 'abcdef'[1:none] }}\n",
     "bc ef abcd ace edc | ab | fdb fed abcdef bcdef"},
    {"{{ 'h\303\251llo'[1] }} {{ 'h\303\251llo'[-4:] }} {{ 'abc'[5] is defined }} {{ 'abc'[-1] }} {{ [1, 2][-3] is defined }} {{ [1, 2][-2] }} {{ [[1, 2], [3]][0][1] }} {{ (1, 2)[1] }}\n",
     "\303\251 \303\251llo False c False 1 2 2"},
    {"{{ [1, 2, 3, 4][1:] | join(',') }} {{ [1, 2, 3, 4][:-1] | join(',') }} {{ range(5)[1:3] | join(',') }} {{ [1, 2][::0] }}\n",
     NULL},
    {"{{ {'a': 1, 'b': {'c': 2}}['b']['c'] }} {{ {'a': 1}.a }} {{ {'a': 1}.b is defined }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 3) }} {{ {1: 'x'}[1] }} {{ {'a': 1, 'a': 2}.a }}\n",
     "2 1 False 1 None 3 x 2"},
    {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'a': 1} | items %}{{ k ~ v }}{% endfor %}{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}{% for v in {'x': 1, 'y': 2}.values() %}{{ v }}{% endfor %}{{ {'x': 1}.keys() | list | join }}\n",
     "a=1;b=2;a1xy12x"},
    {"{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}:{{ loop.index0 }},{{ loop.revindex }},{{ loop.revindex0 }},{{ loop.first }},{{ loop.last }},{{ loop.previtem }},{{ loop.nextitem }} {% endfor %}\n",
     "1/3:0,3,2,True,False,,1 2/3:1,2,1,False,False,0,2 3/3:2,1,0,False,True,1, "},
    {"{% for i in range(2, 10, 3) %}{{ i }} {% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{% for i in range(0) %}x{% else %}empty{% endfor %}\n",
     "2 5 8 321empty"},
    {"{% for i in range(6) if i % 2 == 0 %}{{ i }}{{ ',' if not loop.last }}{% endfor %} {% for i in range(3) if i > 5 %}x{% else %}no{% endfor %}\n",
     "0,2,4 no"},
    {"{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}\n",
     "02"},
    {"{% for i in range(2) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}|{% endfor %}\n",
     "100 201 1|110 211 2|"},
    {"{% set x = 1 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}\n",
     "2221"},
    {"{% for i in range(3) %}{{ y }}{% set y = i %}{{ y }},{% endfor %}{{ y is defined }}\n",
     "0,1,2,False"},
    {"{% for i in range(3) %}{% if i == 1 %}{% set z = 'set' %}{% endif %}{{ z is defined }} {% endfor %}\n",
     "False True False "},
    {"{% if true %}{% set x = 5 %}{% endif %}{{ x }}\n",
     "5"},
    {"{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}\n",
     "4xFalse"},
    {"{% set d = {'a': 1} %}{% set d.a = 2 %}\n",
     NULL},
    {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c ~ d }}\n",
     "122134"},
    {"{% set a, b = [1, 2, 3] %}\n",
     NULL},
    {"{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]{{ x | length }}\n",
     "[a1b]3"},
    {"{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }} {% endfor %}\n",
     "1-2 3-4 "},
    {"{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}.{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(c=3, a=4) }}{{ m() }}\n",
     "1BNone.12None.4B3.BNone."},
    {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}\n",
     NULL},
    {"{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}\n",
     "43210"},
    {"{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}\n",
     NULL},
    {"{% set g = 'G' %}{% macro m() %}{{ g }}{{ bos_token }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}\n",
     "G<s>"},
    {"{{ 1 is defined }} {{ 'a' is string }} {{ 1 is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 1 is iterable }} {{ 'a' is iterable }} {{ none is none }} {{ 1 is not none }} {{ [] is sequence }} {{ 3 is number }} {{ true is number }} {{ true is true }} {{ false is false }} {{ 1 is true }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }}\n",
     "True True False True True False True True True True True True True True False True False True True"},
    {"{{ 3 is eq 3 }} {{ 3 is equalto(4) }} {{ 3 is ne 3 }} {{ 'a' is in ['a'] }} {{ 'a' is in 'bc' }} {{ missing is undefined }} {{ missing is not defined and true }} {{ missing is string }} {{ missing is iterable }} {{ missing is mapping }}\n",
     "True False False True False True True False True False"},
    {"{{ -3 | string }} {{ - 2 + 5 }} {{ 2 - -1 }} {{ -'a' }}\n",
     NULL},
    {"{{ [{'role': 'user', 'n': 1}, {'role': 'tool', 'n': 2}, {'n': 3}] | selectattr('role', 'equalto', 'user') | list | length }} {{ [{'a': 1}, {'a': 0}] | selectattr('a') | list | length }} {{ [{'a': 1}, {'b': 0}] | selectattr('a', 'defined') | list | length }} {{ [{'r': 'x'}, {'r': 'y'}] | rejectattr('r', 'in', ['x']) | list | length }}\n",
     "1 1 1 1"},
    {"{{ {'a': [1, 2.5, true, none, 'x\"\\n\\\\\303\251<']} | tojson }} {{ 'a\\x01' | tojson }} {{ [] | tojson }} {{ {} | tojson }}\n",
     "{\"a\": [1, 2.5, true, null, \"x\\\"\\n\\\\\303\251<\"]} \"a\\u0001\" [] {}"},
    {"{{ missing | tojson }}\n",
     NULL},
    {"{{ messages | length }} {{ messages[0].role }} {{ messages[0]['content'] }} {{ messages[-1].role }} {{ messages[99] is defined }} {{ messages[0].tool_calls is defined }} {{ messages | map(attribute='role') | join if false }}\n",
     "1 user What is a ring? user False False "},
    {"{{ add_generation_prompt }} {{ tools }} {{ tools is none }} {{ tools is defined }} {{ bos_token }} {{ eos_token }} {{ pad_token is defined }} {{ documents is none }}\n",
     "True None True True <s> </s> False True"},
    {"{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %A %B') }} {{ strftime_now is defined }} {{ raise_exception is defined }}\n",
     "04 Jul 2026 2026-07-04 Saturday July True True"},
    {"{{ raise_exception('Not this one') }}\n",
     NULL},
    {"{% if false %}{{ raise_exception('x') }}{{ 'a' | no_such if false }}{% else %}ok{% endif %}\n",
     "ok"},
    {"a{# comment #}b{#- strip -#} c {# {{ not run }} #}d\n",
     "abc d"},
    {"a {%- if true -%} b {%- endif -%} c\n",
     "abc"},
    {"a {{- 'x' -}} b {{ 'y' }} c\n",
     "axb y c"},
    {"a {%+ if true +%} b {% endif %} c\n",
     "a  b  c"},
    {"{{ \"%}\" }}{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ \"{{\" }}{% if '%}' %}x{% endif %}\n",
     "%}}}1{{x"},
    {"{{ 'a' if 'x' is defined else 'b' }} {{ 1 if missing is defined else 2 }} {{ (missing or {}).x is defined }}\n",
     "a 2 False"},
    {"{{ ('a', 'b') | join }} {{ () | length }} {{ (1,) | length }} {{ [1, 2,] | length }} {{ {'a': 1,} | length }}\n",
     "ab 0 1 2 1"},
    {"{{ true }} {{ True }} {{ false }} {{ False }} {{ none }} {{ None }}\n",
     "True True False False None None"},
    {"{{ ' '.join(['a', 'b']) }} {{ 'a' | safe }} {{ (1 | string) + 'x' }}\n",
     "a b a 1x"},
    {"{{ 'a' | upper | lower ~ 'b' }} {{ -1 | string }} {{ not 'a' | length == 1 }} {{ 2 * 3 | string | length }}\n",
     "ab -1 False 2"},
    {"{{ 1 // 0 }}\n",
     NULL},
    {"{{ 9223372036854775807 }}\n",
     "9223372036854775807"},
    {"{{ none + 1 }}\n",
     NULL},
    {"{{ none < 1 }}\n",
     NULL},
    {"{{ 'a' < 1 }}\n",
     NULL},
    {"{% for x in none %}{% endfor %}\n",
     NULL},
    {"{% for x in 5 %}{% endfor %}\n",
     NULL},
    {"{% for a, b in [1] %}{% endfor %}\n",
     NULL},
    {"{{ range(100001) | length }}\n",
     NULL},
    {"{{ 'a'.nothing() }}\n",
     NULL},
    {"{{ 5() }}\n",
     NULL},
    {"{% if %}x{% endif %}\n",
     NULL},
    {"{% if true %}x\n",
     NULL},
    {"{% for in x %}{% endfor %}\n",
     NULL},
    {"{{ 'unclosed }}\n",
     NULL},
    {"{{ 1 + }}\n",
     NULL},
    {"{{ (1 }}\n",
     NULL},
    {"{% unknown %}\n",
     NULL},
    {"{{ 1 | }}\n",
     NULL},
    {"{{ a.b.c }}\n",
     NULL},
    {"{# never closed\n",
     NULL},
    {"{{ 1\n",
     NULL},
    {"{% break %}\n",
     NULL},
};
