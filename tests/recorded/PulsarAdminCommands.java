import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.pulsar.client.admin.PulsarAdmin;
import picocli.CommandLine;
import picocli.CommandLine.Model.OptionSpec;

/**
 * Prints the commands of pulsar-admin's groups and their options as JSON, by their picocli models:
 * java -cp 'JARS/*' PulsarAdminCommands.java VERSION, with the jars of org.apache.pulsar's
 * pulsar-client-tools.
 */
public class PulsarAdminCommands {
    public static void main(String[] args) throws Exception {
        List<String> groups = new ArrayList<>();
        for (String each : List.of("Topics", "Namespaces", "Tenants", "Schemas")) {
            Class<?> kind = Class.forName("org.apache.pulsar.admin.cli.Cmd" + each);
            Supplier<PulsarAdmin> none = () -> null;
            Object command = kind.getConstructor(Supplier.class).newInstance(none);
            var commander = Class.forName("org.apache.pulsar.admin.cli.CmdBase").getDeclaredMethod("getCommander");
            commander.setAccessible(true);
            CommandLine group = (CommandLine) commander.invoke(command);
            Map<String, String> rows = new TreeMap<>();
            for (var sub : group.getSubcommands().entrySet()) {
                List<String> options = new ArrayList<>();
                for (OptionSpec option : sub.getValue().getCommandSpec().options()) {
                    options.add("\"" + option.longestName() + "\"");
                }
                options.sort(null);
                rows.put(sub.getKey(), "  \"" + sub.getKey() + "\": [" + String.join(", ", options) + "]");
            }
            groups.add(" \"" + each.toLowerCase() + "\": {\n" + String.join(",\n", rows.values()) + "\n }");
        }
        System.out.println("{\"version\": \"" + args[0] + "\", \"commands\": {\n"
            + String.join(",\n", groups) + "\n}}");
    }
}
