import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import picocli.CommandLine;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;

/**
 * Prints the options of pulsar-client and pulsar-perf as JSON, by their picocli models:
 * java -cp 'JARS/*' PulsarToolOptions.java VERSION, with the jars of org.apache.pulsar's
 * pulsar-client-tools, pulsar-testclient and managed-ledger.
 */
public class PulsarToolOptions {
    static final List<String> LINES = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        Class<?> tool = Class.forName("org.apache.pulsar.client.cli.PulsarClientTool");
        Field commander = tool.getDeclaredField("commander");
        commander.setAccessible(true);
        Object client = tool.getConstructor(Properties.class).newInstance(new Properties());
        CommandLine root = (CommandLine) commander.get(client);
        for (String name : List.of("produce", "consume", "read")) {
            describe(name, root.getSubcommands().get(name).getCommandSpec());
        }
        for (String name : List.of("produce", "consume")) {
            String kind = name.equals("produce") ? "Producer" : "Consumer";
            Class<?> command = Class.forName("org.apache.pulsar.testclient.Performance" + kind);
            Constructor<?> made = command.getDeclaredConstructor();
            describe("perf " + name, new CommandLine(made.newInstance()).getCommandSpec());
        }
        System.out.println("{\"version\": \"" + args[0] + "\", \"commands\": {\n"
            + String.join(",\n", LINES) + "\n}}");
    }

    static void describe(String name, CommandSpec spec) throws Exception {
        List<OptionSpec> options = new ArrayList<>(spec.options());
        options.sort(Comparator.comparing(OptionSpec::longestName));
        List<String> rows = new ArrayList<>();
        for (OptionSpec each : options) {
            Object initial = each.getter() == null ? null : each.getter().get();
            String shown = each.defaultValue() == null ? text(initial) : text(each.defaultValue());
            rows.add("  {\"names\": " + names(each) + ", \"takes\": " + each.arity().max()
                + ", \"required\": " + each.required() + ", \"default\": " + shown + "}");
        }
        LINES.add(" \"" + name + "\": [\n" + String.join(",\n", rows) + "\n ]");
    }

    static String names(OptionSpec option) {
        List<String> names = new ArrayList<>();
        for (String each : option.names()) {
            names.add(text(each));
        }
        return "[" + String.join(", ", names) + "]";
    }

    static String text(Object value) {
        return value == null ? "null" : "\"" + value.toString().replace("\\", "\\\\") + "\"";
    }
}
